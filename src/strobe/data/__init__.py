"""Values in transit: canonical values as Arrow, and changes too large for memory as files."""
