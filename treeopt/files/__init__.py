"""Files in and out: values with their lines, log lines, archives, and what is shipped."""
