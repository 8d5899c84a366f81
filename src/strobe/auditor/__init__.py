"""Auditor: decides whether what readers see is a state that the sources really were in. Shares nothing with managers
and merge."""
