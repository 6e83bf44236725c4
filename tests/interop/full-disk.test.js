// Goal: a full disk refuses writes with 507 and nothing else: what was acknowledged stays
// readable, and writes resume by themselves once there is room.
// Method: the server's folder is on a small tmpfs. `lib/full-disk.js` is what runs there.

import { test } from 'node:test';
import { runWithMounts } from './lib/mounts.js';

test('a full disk loses nothing, and writes resume when there is room', (t) =>
  runWithMounts(t, 'full-disk.js', 'tmpfs'));
