"""The monitor: one service that knows all ranks, judges them and says what is done about them."""
