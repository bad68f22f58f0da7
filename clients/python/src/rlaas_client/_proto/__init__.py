"""Messages, written by generate.sh."""
