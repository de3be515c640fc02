"""The host's half of a `.cu` becomes an object that carries the device's half: what a program with `<<<>>>` is linked from."""
