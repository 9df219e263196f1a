"""What the documentation takes from the code when it is built: commands, keys, routes, metrics, files, results, notebooks."""
