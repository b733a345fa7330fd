"""One file a version. A version that was released is never changed; the next one stands on it."""
