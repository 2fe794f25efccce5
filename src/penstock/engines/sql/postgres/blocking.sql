-- What the blocking way in sends; values are texts.

-- name: put
SELECT penstock.put_plain($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::text,
                          $7::double precision)

-- name: wake
SELECT penstock.wake('work', $1::text)
