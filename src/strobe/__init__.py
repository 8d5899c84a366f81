"""Joined views of several live databases, kept fresh and never wrong, in Delta tables."""

from __future__ import annotations

__version__ = "0.1.0"
