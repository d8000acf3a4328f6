-- The lines of one object as rows.

INSERT INTO {lines} (object, line, message_id, channel, position, "timestamp", source, type, key, document)
SELECT %s, line, message_id, channel, position, stamp::timestamptz, source, type, key,
       CASE WHEN pg_input_is_valid(document, 'jsonb') THEN document::jsonb END
FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
     WITH ORDINALITY AS rows (message_id, channel, position, stamp, source, type, key, document, line)
