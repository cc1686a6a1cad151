"""What a training run needs to go on after it was killed, in a directory that is whole or not there."""
