-- uses: clock
-- The store's epoch. Reads {holdfast}:store.
return EPOCH
