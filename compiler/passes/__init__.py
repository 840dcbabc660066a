"""Graph passes: pure functions from a graph to a graph; `pipeline` lists them in order."""
