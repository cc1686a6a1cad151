"""The HTTP client of the services: JSON requests, chat completions, endpoints, proxies."""
