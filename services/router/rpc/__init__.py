"""What every RPC does around its work: keys, reading the request, errors and their details."""
