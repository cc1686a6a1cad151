"""Learns from 429s how many calls a second a service accepts."""
