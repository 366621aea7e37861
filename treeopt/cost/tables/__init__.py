"""Cost tables that engines write and read: SGLang's DSPARK tables, vLLM's batch x K table."""
