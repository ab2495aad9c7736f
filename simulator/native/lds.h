/* LDS: reads, writes, loads from global memory into it, and the races between waves. */

static void count_conflicts(Machine *m, const Wave *w, const Ins *i, const u32 *at, int width) {
  Stats *t = &m->stats[i - m->code];
  t->executions++;
  if ((t->executions > 2 && (t->executions & 63)) || w->exec != ~0ull) return;
  int lanes = width <= 4 ? 32 : width == 8 ? 16 : 8, each = width < 4 ? 1 : width / 4, extra = 0;
  for (int first = 0; first < LANES; first += lanes) {
    u32 seen[64];
    int count = 0, most = 0, per_bank[256];
    memset(per_bank, 0, sizeof per_bank);
    for (int l = first; l < first + lanes; l++)
      for (int k = 0; k < each; k++) {
        u32 word = (at[l] >> 2) + (u32)k;
        int known = 0;
        for (int j = 0; j < count && !known; j++) known = seen[j] == word;
        if (known) continue;
        seen[count++] = word;
        int hits = ++per_bank[word % (u32)m->banks];
        most = hits > most ? hits : most;
      }
    extra += most - 1;
  }
  t->conflicts += extra;
  t->conflict_samples += 1;
}
static int lds_addresses(Machine *m, Wave *w, int row, u32 offset, int width, u32 *at) {
  const u32 *v = w->V + row * LANES;
  u32 most = 0, low = 0;
  for (int l = 0; l < LANES; l++) {
    at[l] = v[l] + offset;
    u32 own = at[l] & w->em[l];
    most = own > most ? own : most;
    low |= own;
  }
  if (w->exec && (m->lds_bytes < width || most > (u32)(m->lds_bytes - width))) return OUT_OF_BOUNDS;
  return low & (u32)((width < 4 ? width : 4) - 1) ? MISALIGNED : 0;
}
typedef struct { u32 bad, low, high; } Touched;

/* Reads: a wave that wrote these bytes itself, with the value they still have, may read them. Writes: `same` are lanes
   that leave the bytes as they are, which waves may do side by side. */
INLINE Touched touch(
    Machine *m, const u32 *at, u64 mask, int shift, const int pieces, const int writes, u32 own, u64 same) {
  Touched t = {0, ~0u, 0};
  u32 *writers = m->lds_writers, *readers = m->lds_readers;
  for (int l = 0; l < LANES; l++) {
    if (!(mask >> l & 1)) continue;
    u32 first = at[l] >> shift;
    t.low = first < t.low ? first : t.low;
    t.high = first > t.high ? first : t.high;
    for (u32 k = first; k < first + (u32)pieces; k++) {
      u32 wrote = writers[k];
      if (writes) {
        u32 read = readers[k];
        t.bad |= (same >> l & 1 ? read & ~wrote : wrote | read) & ~own;
        writers[k] = wrote | own;
      } else {
        t.bad |= wrote & own ? 0 : wrote;
        readers[k] |= own;
      }
    }
  }
  return t;
}
INLINE Touched touch_sized(Machine *m, const u32 *at, u64 mask, int pieces, const int writes, u32 own, u64 same) {
  int shift = __builtin_ctz((u32)m->granule);
  switch (pieces) {
  case 1: return touch(m, at, mask, shift, 1, writes, own, same);
  case 2: return touch(m, at, mask, shift, 2, writes, own, same);
  case 4: return touch(m, at, mask, shift, 4, writes, own, same);
  }
  return touch(m, at, mask, shift, pieces, writes, own, same);
}
/* Marks the bytes that a wave reads or writes; RACE where another wave has been there. */
static __attribute__((noinline)) int lds_race(
    Machine *m, const Wave *w, const u32 *at, u64 mask, int width, int writes, u64 same) {
  if (!m->check_races || !mask) return 0;
  int pieces = width / m->granule < 1 ? 1 : width / m->granule, whole = mask == ~0ull;
  u32 own = 1u << w->number;
  Touched t;
  if (whole && !same)
    t = writes ? touch_sized(m, at, ~0ull, pieces, 1, own, 0) : touch_sized(m, at, ~0ull, pieces, 0, own, 0);
  else t = writes ? touch_sized(m, at, mask, pieces, 1, own, same) : touch_sized(m, at, mask, pieces, 0, own, 0);
  m->dirty_low = (i32)t.low < m->dirty_low ? (i32)t.low : m->dirty_low;
  m->dirty_high = (i32)t.high + pieces > m->dirty_high ? (i32)t.high + pieces : m->dirty_high;
  return t.bad ? RACE : 0;
}
/* lanes whose write would change nothing; only needed where another wave has written too */
static u64 unchanged(const Machine *m, const Wave *w, const u32 *at, int row, int width, int shift_data) {
  u64 same = 0;
  u32 others = 0;
  int shift = __builtin_ctz((u32)m->granule), pieces = width / m->granule < 1 ? 1 : width / m->granule;
  for (int l = 0; l < LANES; l++)
    for (u32 k = at[l] >> shift, end = k + (u32)pieces; w->exec >> l & 1 && k < end; k++) others |= m->lds_writers[k];
  if (!(others & ~(1u << w->number))) return 0;
  for (int l = 0; l < LANES; l++) {
    u8 fresh[16];
    if (!(w->exec >> l & 1)) continue;
    put_lane(fresh, w->V + row * LANES, l, width, shift_data);
    int equal = 1;
    for (int k = 0; k < width; k++) equal &= fresh[k] == m->lds[at[l] + (u32)k];
    same |= (u64)equal << l;
  }
  return same;
}
/* a wave must not touch bytes that its own load into LDS is still to write */
static int in_flight(const Machine *m, const Wave *w, const u32 *at, u64 mask, int width) {
  if (!m->flights) return 0;
  int shift = __builtin_ctz((u32)m->granule), pieces = width / m->granule < 1 ? 1 : width / m->granule;
  for (int l = 0; l < LANES; l++)
    for (int k = (int)(at[l] >> shift), end = k + pieces; mask >> l & 1 && k < end; k++)
      if (m->lds_flights[k] >> w->number & 1) return HAZARD;
  return 0;
}
/* the write of a load into LDS counts in every epoch from its issue to its wait */
static int note_flight(Machine *m, const Wave *w, const Pending *e, int on) {
  u32 at[LANES];
  int shift = __builtin_ctz((u32)m->granule), pieces = e->width / m->granule < 1 ? 1 : e->width / m->granule;
  for (int l = 0; l < LANES; l++) {
    at[l] = (u32)(e->base + l * e->width);
    for (int k = (int)(at[l] >> shift), end = k + pieces; e->lanes >> l & 1 && k < end; k++)
      if (on) m->lds_flights[k] |= 1u << w->number; else m->lds_flights[k] &= ~(1u << w->number);
  }
  return lds_race(m, w, at, e->lanes, e->width, 1, 0);
}
static void land(Machine *m, const Wave *w, const Pending *e) {
  m->flights--;
  m->found |= note_flight(m, w, e, 0);
}
static __attribute__((noinline)) int load_lds(Machine *m, Wave *w, const Ins *i) {
  u64 at[LANES], mask;
  int width = i->p[5], wide = width < 4 ? 4 : width, count = wide / 4;
  if (!m->check_waits) return REFUSED;
  int bad = addresses(m, w, i, at, &mask, width);
  if (bad) return bad;
  i64 base = (i64)w->S[124] + i->p[8];
  if (base + wide * LANES > m->lds_bytes) return OUT_OF_BOUNDS;
  if ((u64)base & (u64)(wide < 4 ? wide - 1 : 3)) return MISALIGNED;
  if (mask && !aligned(at, mask, width)) return MISALIGNED;
  for (int l = 0; l < LANES; l++) {
    if (!(w->exec >> l & 1)) continue;
    u32 value[4] = {0, 0, 0, 0};
    int all = 1;
    if (mask >> l & 1) {
      Buffer *own = find(m, at[l], at[l] + (u64)width);
      if (!own) return OUT_OF_BOUNDS;
      u64 place = at[l] - own->start;
      memcpy(value, own->data + place, (u32)width);
      if (own->written && m->check_unwritten) for (int k = 0; k < width; k++) all &= own->written[place + (u32)k];
    }
    if (width < 4) value[0] = narrow(value[0], width, i->p[6]);
    memcpy(m->lds + base + l * wide, value, 4u * (u32)count);
    memset(m->lds_valid + base + l * wide, all || !m->check_unwritten, (u32)wide);
  }
  m->stats[i - m->code].bytes += (u64)__builtin_popcountll(mask) * (u64)width;
  m->stats[i - m->code].more_bytes += (u64)__builtin_popcountll(w->exec) * (u64)wide;
  count_lines(m, i, at, mask);
  bad = issue(m, w, i, 0, TAG_DMA, 0);
  if (bad) return bad;
  Pending *e = &w->queue[0][(w->head[0] + w->length[0] - 1) % RING];
  e->base = (i32)base;
  e->width = wide;
  e->lanes = w->exec;
  m->flights++;
  return note_flight(m, w, e, 1);
}
/* ds_read_b64_tr: in blocks of 16 lanes a matrix with rows of 16 elements; lane i receives column i */
static void transpose(u32 (*value)[LANES], int bits) {
  u32 out[2][LANES];
  int each = 64 / bits;
  u32 field = (1u << bits) - 1;
  memset(out, 0, sizeof out);
  for (int l = 0; l < LANES; l++)
    for (int r = 0; r < each; r++) {
      int from = r * 16 + (l & 15), lane = (l & 48) + from / each, place = from % each * bits, to = r * bits;
      out[to / 32][l] |= (value[place / 32][lane] >> place % 32 & field) << to % 32;
    }
  memcpy(value, out, sizeof out);
}
static __attribute__((noinline)) int lds_read(Machine *m, Wave *w, const Ins *i) {
  const i32 *p = i->p;  /* target, address, offset, second offset or -1, width, flags */
  int width = p[4], count = width < 4 ? 1 : width / 4, halves = p[3] < 0 ? 1 : 2, bad;
  u32 at[2][LANES], value[2][4][LANES] __attribute__((aligned(64)));
  u64 stale[2] = {0, 0};
  for (int h = 0; h < halves; h++) {
    bad = lds_addresses(m, w, p[1], (u32)(h ? p[3] : p[2]), width, at[h]);
    if (bad) return bad;
    bad = lds_race(m, w, at[h], w->exec, width, 0, 0);
    if (bad || (bad = in_flight(m, w, at[h], w->exec, width))) return bad;
    count_conflicts(m, w, i, at[h], width);
    int plain = w->exec == ~0ull && width >= 4;
    if (plain) {
      u32 bad_lane[LANES];
      memset(bad_lane, 0, sizeof bad_lane);
      for (int k = 0; k < count; k++)
        for (int l = 0; l < LANES; l++) {
          u32 known;
          __builtin_memcpy(&value[h][k][l], m->lds + at[h][l] + 4 * k, 4);
          __builtin_memcpy(&known, m->lds_valid + at[h][l] + 4 * k, 4);
          bad_lane[l] |= known ^ 0x01010101u;
        }
      for (int l = 0; l < LANES; l++) stale[h] |= (u64)(bad_lane[l] != 0) << l;
    }
    for (int l = 0; l < LANES && !plain; l++) {
      if (!(w->exec >> l & 1)) continue;
      const u8 *from = m->lds + at[h][l], *known = m->lds_valid + at[h][l];
      int all = 1;
      if (width >= 4) for (int k = 0; k < count; k++) {
        u32 four;
        __builtin_memcpy(&value[h][k][l], from + 4 * k, 4);
        __builtin_memcpy(&four, known + 4 * k, 4);
        all &= four == 0x01010101u;
      } else {
        value[h][0][l] = width == 1 ? from[0] : (u32)(from[0] | from[1] << 8);
        all = known[0] & (width == 1 ? 1 : known[1]);
      }
      stale[h] |= (u64)!all << l;
    }
  }
  m->stats[i - m->code].bytes += (u64)__builtin_popcountll(w->exec) * (u64)(width * halves);
  if (p[7]) {
    if (w->exec != ~0ull) return REFUSED;
    transpose(value[0], p[7]);
    for (int b = 0; b < LANES; b += 16) if (stale[0] >> b & 0xffff) stale[0] |= 0xffffull << b;
  }
  for (int h = 0; h < halves; h++)
    bind_loaded(m, w, p[0] + h * count, value[h], width, p[5], m->check_unwritten ? stale[h] : 0);
  bad = issue(m, w, i, 1, TAG_DS, 1);
  if (bad || !m->check_waits || !m->check_races) return bad;
  Pending *e = &w->queue[1][(w->head[1] + w->length[1] - 1) % RING];
  if (w->length[1] > SLOTS) return REFUSED;
  e->width = width;
  e->slot = w->next_slot++ % SLOTS;
  if (w->exec == ~0ull) {
    memcpy(w->address[e->slot], at, 4u * LANES * (u32)halves);
    e->count = LANES * halves;
    return 0;
  }
  int count_active = 0;
  for (int h = 0; h < halves; h++)
    for (int l = 0; l < LANES; l++) if (w->exec >> l & 1) w->address[e->slot][count_active++] = at[h][l];
  e->count = count_active;
  return 0;
}
static __attribute__((noinline)) int lds_write(Machine *m, Wave *w, const Ins *i) {
  const i32 *p = i->p;  /* data, address, offset, second offset or -1, width, shift, second data */
  int width = p[4], halves = p[3] < 0 ? 1 : 2;
  for (int h = 0; h < halves; h++) {
    u32 at[LANES];
    int row = h ? p[6] : p[0], bad = lds_addresses(m, w, p[1], (u32)(h ? p[3] : p[2]), width, at);
    if (bad) return bad;
    u64 same = m->check_races ? unchanged(m, w, at, row, width, p[5]) : 0;
    bad = lds_race(m, w, at, w->exec, width, 1, same);
    if (bad || (bad = in_flight(m, w, at, w->exec, width))) return bad;
    count_conflicts(m, w, i, at, width);
    u64 stale = m->check_unwritten ? stale_data(m, w, row, width, p[5]) : 0;
    int plain = w->exec == ~0ull && width >= 4 && !stale;
    for (int l = 0; l < LANES && plain; l++)
      for (int k = 0; k < width / 4; k++) {
        __builtin_memcpy(m->lds + at[l] + 4 * k, w->V + (row + k) * LANES + l, 4);
        __builtin_memcpy(m->lds_valid + at[l] + 4 * k, "\1\1\1\1", 4);
      }
    for (int l = 0; l < LANES && !plain; l++) {
      if (!(w->exec >> l & 1)) continue;
      put_lane(m->lds + at[l], w->V + row * LANES, l, width, p[5]);
      memset(m->lds_valid + at[l], !(stale >> l & 1), (u32)width);
    }
    m->stats[i - m->code].bytes += (u64)__builtin_popcountll(w->exec) * (u64)width;
  }
  return issue(m, w, i, 1, TAG_DS_WRITE, 0);
}
/* an epoch ends: only reads that have not been waited for reach into the next one */
static void next_epoch(Machine *m) {
  if (!m->check_races) return;
  if (m->dirty_high > m->dirty_low) {
    u32 size = 4 * (u32)(m->dirty_high - m->dirty_low);
    memset(m->lds_writers + m->dirty_low, 0, size);
    memset(m->lds_readers + m->dirty_low, 0, size);
  }
  m->dirty_low = 1 << 30;
  m->dirty_high = 0;
  for (int n = 0; n < m->waves_per_group; n++) {
    Wave *w = &m->waves[n];
    if (w->state == ENDED) continue;
    for (int k = 0; k < w->length[1]; k++) {
      const Pending *e = &w->queue[1][(w->head[1] + k) % RING];
      if (e->tag != TAG_DS || !e->count) continue;
      for (int j = 0; j < e->count; j += LANES) {
        int some = e->count - j < LANES ? e->count - j : LANES;
        m->found |= lds_race(m, w, w->address[e->slot] + j, some == LANES ? ~0ull : (1ull << some) - 1, e->width, 0, 0);
      }
    }
    for (int k = 0; k < w->length[0]; k++) {
      const Pending *e = &w->queue[0][(w->head[0] + k) % RING];
      if (e->tag == TAG_DMA) m->found |= note_flight(m, w, e, 1);
    }
  }
}
