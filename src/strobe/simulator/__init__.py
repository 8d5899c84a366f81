"""Simulator: the same boxes on a scripted or random schedule, without live sources and without Spark."""
