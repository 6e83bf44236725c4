// Goal: on a file system without direct I/O, a server that is configured to use it logs that and works.
// Method: the server's directory is on a ramfs, which refuses O_DIRECT; `lib/no-direct-io.js` runs there.

import { test } from 'node:test';
import { runWithMounts } from './lib/mounts.js';

test('a file system without direct I/O is logged, and its files use the page cache', (t) =>
  runWithMounts(t, 'no-direct-io.js', 'ramfs'));
