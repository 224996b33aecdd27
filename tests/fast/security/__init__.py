"""Protection against attackers who share the server, name locks, send tasks, use the admin, or
read logs."""
