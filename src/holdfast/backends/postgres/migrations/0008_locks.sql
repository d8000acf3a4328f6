-- Locks with fencing tokens.

-- Leases on names. A row stays when its lock is freed (until is null), so that the token only ever rises.
CREATE TABLE holdfast.locks (
    name  text PRIMARY KEY,
    owner text NOT NULL,
    token bigint NOT NULL,
    until timestamptz
);

-- Refuse a holder from the past. The row stays locked until the transaction ends: nobody takes the lock over
-- in between.
CREATE FUNCTION holdfast.fence(p_name text, p_token bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM holdfast.locks WHERE name = p_name AND token = p_token AND until IS NOT NULL FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lock % with token % was lost', p_name, p_token
            USING ERRCODE = 'HF005', DETAIL = jsonb_build_array(p_name, p_token)::text;
    END IF;
END $$;
