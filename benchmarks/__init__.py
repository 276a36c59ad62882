"""The measurements behind the book: ``python -m benchmarks NAME`` runs one and stores what it saw."""
