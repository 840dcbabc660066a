"""The protocol between the service and its workers: messages, their limits, signatures, judge."""
