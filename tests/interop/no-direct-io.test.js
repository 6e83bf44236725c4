// Goal: where a file system has no direct I/O, a server that is to use it says so and works.
// Method: the server's folder is on a ramfs, which refuses O_DIRECT. `lib/no-direct-io.js` is what
// runs there.

import { test } from 'node:test';
import { runWithMounts } from './lib/mounts.js';

test('a file system without direct I/O is told of, and its files go through the page cache', (t) =>
  runWithMounts(t, 'no-direct-io.js', 'ramfs'));
