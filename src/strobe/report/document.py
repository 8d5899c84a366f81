"""What every public document has in common."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

FORMAT = 1
"""Stands in every JSON document; it changes when a document changes its meaning."""
