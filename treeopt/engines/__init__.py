"""What engines load: one file per engine, with its limits."""
