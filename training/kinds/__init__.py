"""What the bundled model can be asked. Each file holds one family of kinds; `catalogue` lists them all."""
