"""The table of kinds."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from strobe.config.model import SourceConfig
from strobe.errors import UserError
from strobe.sources.base import Source
from strobe.sources.registry import KINDS, open_source


def test_every_type_of_the_configuration_has_a_class() -> None:
    """Types that strobe.yml may name, and kinds, are the same; each entry leads to a source."""
    configured = {t for config in get_args(SourceConfig) for t in get_args(config.model_fields["type"].annotation)}
    assert configured == set(KINDS)
    for entry in KINDS.values():
        module, _, name = entry.partition(":")
        assert issubclass(getattr(import_module(module), name), Source)


def test_an_unknown_type_is_the_users_mistake() -> None:
    """The message names the types there are."""
    with pytest.raises(UserError, match="no source type oracle") as caught:
        open_source("s", SimpleNamespace(type="oracle"), Path(), None)
    assert "sqlite, files, postgres, mariadb, mysql, delta" in caught.value.fix
