-- uses: locks
-- Refuse a holder from the past, and do nothing else. Reads {holdfast}:lock:NAME.
-- ARGV: name, token.
fence(ARGV[1], ARGV[2])
return 1
