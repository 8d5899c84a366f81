"""What is read: the warehouse of a project, or one whose project is somewhere else."""

from __future__ import annotations

from pathlib import Path

from strobe.config.load import load_project, warehouse_alone
from strobe.config.model import Project
from strobe.errors import UserError
from strobe.warehouse import inspect, storage
from strobe.warehouse.layout import PROJECT_PROPERTY, Layout


def project_to_read(directory: Path, warehouse: Path | None = None) -> Project:
    """The project in a folder, or as much of one as its warehouse knows: enough for everything that asks no source."""
    if warehouse is None:
        return load_project(directory)
    layout = Layout(warehouse.absolute())
    if not storage.exists(layout.log):
        raise UserError("there is no warehouse here", where=str(warehouse), fix="Name the folder that holds `log`.")
    name = inspect.properties(inspect.open_log(layout)).get(PROJECT_PROPERTY, layout.root.name)
    return warehouse_alone(warehouse, name)
