"""Reads handlers without running them and finds lines that re-running makes dangerous."""
