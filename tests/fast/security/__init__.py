"""What must hold where somebody means harm: whoever shares the server, names locks, sends tasks,
looks at the admin, or reads logs."""
