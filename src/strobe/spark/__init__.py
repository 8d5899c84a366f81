"""The data plane: relations, staging and answers in Spark."""
