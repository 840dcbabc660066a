"""Chooses for a whole graph, by measurement: fusion, passes and layouts."""
