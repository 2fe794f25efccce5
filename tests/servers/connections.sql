-- Who is connected in the name of a handle.
SELECT application_name || ' (' || state || '): ' || query
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND backend_type = 'client backend' AND application_name LIKE 'penstock%'
