"""The demo: a little shop under load, Strobe beside a naive maintainer, and every committed state checked."""
