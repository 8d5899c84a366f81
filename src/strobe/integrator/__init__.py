"""Integrator: numbers transactions by arrival, finds the views they are relevant to, decides where blocks end."""
