"""The protocol between the service and its workers: messages, limits, signatures and checks."""
