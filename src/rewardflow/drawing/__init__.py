"""Makes self-contained pages and pictures: HTML and SVG without a framework and without the network."""
