"""Pages and pictures in files of their own: HTML and SVG without a framework and without the network."""
