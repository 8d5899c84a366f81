"""Prints the JSON Schema of strobe.yml: `python -m strobe.config`."""

from strobe.config.model import schema_text

if __name__ == "__main__":
    print(schema_text(), end="")
