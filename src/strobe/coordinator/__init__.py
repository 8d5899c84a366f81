"""The process that holds the claim on a warehouse, and keeps its views run after run."""
