"""Integrator: numbers transactions by arrival and finds the views they are relevant to."""
