"""What the monitor keeps: tables, their JSON, and the one thread that writes them."""
