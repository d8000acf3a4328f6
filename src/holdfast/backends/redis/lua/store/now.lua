-- uses: clock
-- The store's time in microseconds. Reads {holdfast}:store.
return NOW_TEXT
