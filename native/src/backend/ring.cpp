#include "ring.hpp"

#include <algorithm>

namespace xlm {

namespace {
// Bounds of events in use, so that none comes up for reuse in the pool while something waits for it.
constexpr size_t kMaxPieces = 64, kMaxRetired = 80;

// A shadow that outlives its place would be read by whoever patches it in next.
void let_go(ggml_tensor & shadow, const ggml_backend_buffer * ring) {
    if (shadow.buffer != ring) return;
    shadow.buffer = nullptr;
    shadow.data = nullptr;
}
} // namespace

bool Ring::ensure(uint64_t bytes, uint64_t largest, const LedgerView & view) {
    if (present()) return capacity_bytes() >= largest;
    const uint64_t left = view.budget_bytes > view.used_bytes ? view.budget_bytes - view.used_bytes : 0;
    const uint64_t least = std::max(2 * largest, bytes / 4); // smaller parts than that cost more than the CPU does
    if (bytes > left) bytes = left >= least ? left / inner_.alignment() * inner_.alignment() : 0;
    if (bytes < largest || bytes == 0) return false;
    buffer_ = inner_.allocate(Purpose::ring, bytes);
    if (!buffer_) return false;
    weights_ = RingAllocator(bytes);
    return true;
}

// Between weights a cache is one very large piece: where all take the next place, it finds none until most of them are
// gone. So it has places of its own.
void Ring::share_out(uint64_t cache_bytes) {
    if (cache_bytes == caches_.capacity_bytes()) return;
    forget();
    weights_ = RingAllocator(capacity_bytes() - cache_bytes);
    caches_ = RingAllocator(cache_bytes);
}

RingAllocator & Ring::allocator_of(const Streamed & what) {
    return !what.states.empty() && caches_.capacity_bytes() > 0 ? caches_ : weights_;
}

std::optional<RingSpan> Ring::place(const Streamed & what) {
    RingAllocator & allocator = allocator_of(what);
    std::optional<RingSpan> span = allocator.allocate(what.bytes);
    if (span && &allocator == &weights_) span->offset += caches_.capacity_bytes();
    return span;
}

void Ring::forget() {
    if (!pieces_.empty()) inner_.synchronize(Stream::upload);
    for (const Piece & piece : pieces_)
        let_go_of(piece);
    pieces_.clear();
    order_.clear();
    next_ = left_ = 0;
    weights_ = RingAllocator(weights_.capacity_bytes());
    caches_ = RingAllocator(caches_.capacity_bytes());
    // retired_ stays: work under way may still read those places.
}

void Ring::drop() {
    forget();
    retired_.clear();
    buffer_.reset();
    weights_ = caches_ = RingAllocator(0);
}

bool Ring::begin(const std::vector<Streamed> & order, const Pace & pace, uint64_t max_ahead_ns, bool held,
                 uint64_t cache_bytes) {
    share_out(cache_bytes);
    ahead_.begin(pace, max_ahead_ns, held);
    bool matches = pieces_.size() <= order.size();
    for (size_t i = 0; matches && i < pieces_.size(); i++)
        matches = pieces_[i].what == order[i];
    if (!matches) forget();
    order_ = order;
    next_ = order_.empty() ? 0 : pieces_.size() % order_.size();
    left_ = order_.size() - pieces_.size();
    return pump();
}

void Ring::begin_graph() {
    const auto is_cache = [](const Piece & piece) { return !piece.what.states.empty(); };
    if (std::any_of(pieces_.begin(), pieces_.end(), is_cache)) forget();
}

bool Ring::grant(uint64_t ns, bool hidden) {
    ahead_.grant(ns, hidden, now_ns());
    return pump();
}

bool Ring::pump(size_t n_needed) {
    for (;;) {
        const bool begun = !pieces_.empty() && !pieces_.back().whole();
        const bool needed = pieces_.size() - (begun ? 1 : 0) < n_needed;
        if (!begun && ((!needed && ahead_.room_ns(now_ns()) == 0) || !open_next())) return inner_.usable();
        Piece & piece = pieces_.back();
        const uint64_t left = piece.bytes - piece.sent_bytes, bytes = needed ? left : ahead_.bytes_now(left, now_ns());
        if (left > 0 && bytes == 0) return true;
        if (!send(piece, bytes)) return false;
    }
}

// Weights are queued into the next step, caches are not: rows of theirs may still change.
bool Ring::open_next() {
    if (order_.empty() || pieces_.size() >= std::min(order_.size(), kMaxPieces)) return false;
    const Streamed & what = order_[next_];
    if (left_ == 0 && !what.states.empty()) return false;
    const auto span = place(what);
    if (!span) return false;
    next_ = (next_ + 1) % order_.size();
    left_ -= left_ > 0 ? 1 : 0;
    return open(what, *span);
}

// Retired places are reused in the order they were retired: waiting for the last
// one that overlaps covers those before it.
bool Ring::wait_for_readers(const RingSpan & span, bool on_host) {
    size_t n = 0;
    for (size_t i = 0; i < retired_.size(); i++)
        if (overlaps(retired_[i].span, span)) n = i + 1;
    if (n == 0) return true;
    Retired last = retired_[n - 1];
    for (size_t i = 0; i < n; i++) {
        last.states |= retired_[i].states;
        if (retired_[i].fetched) last.fetched = retired_[i].fetched;
    }
    retired_.erase(retired_.begin(), retired_.begin() + static_cast<std::ptrdiff_t>(n));
    return wait_for(last, on_host);
}

bool Ring::wait_for(const Retired & last, bool on_host) {
    const auto wait = [&](ggml_backend_event_t event) {
        return on_host ? inner_.wait_host(event) : inner_.wait(Stream::upload, event);
    };
    if (!last.read)
        return inner_.synchronize(Stream::compute) && (!last.states || inner_.synchronize(Stream::download));
    return wait(last.read) && (!last.fetched || wait(last.fetched));
}

bool Ring::open(const Streamed & what, const RingSpan & span) {
    // Padding is written by the device outside of any stream.
    const auto needs_padding = [&](const State * state) { return inner_.needs_padding(state->tensor); };
    const bool padded = what.weight ? inner_.needs_padding(what.weight->tensor)
                                    : std::any_of(what.states.begin(), what.states.end(), needs_padding);
    if (!wait_for_readers(span, padded)) return false;
    pieces_.emplace_back();
    Piece & piece = pieces_.back();
    piece.what = what;
    piece.span = span;
    return what.weight ? open_weight(piece, padded) : open_states(piece);
}

bool Ring::open_weight(Piece & piece, bool padded) {
    const Streamed & what = piece.what;
    piece.tensor = what.weight->shadow;
    piece.tensor.buffer = buffer_.get();
    piece.tensor.data = buffer_.base() + piece.span.offset;
    if (what.n_rows > 0) {
        piece.tensor.ne[1] = what.n_rows;
        piece.tensor.nb[2] = piece.tensor.nb[3] = static_cast<size_t>(what.n_rows) * piece.tensor.nb[1];
    }
    piece.bytes = ggml_nbytes(&piece.tensor);
    stats_.n_pieces_streamed++;
    return !padded || inner_.init_tensor(&piece.tensor);
}

// A place for all of a cache, so that rows lie where the graph thinks they do; of its bytes, those that it touches.
bool Ring::open_states(Piece & piece) {
    uint64_t offset = piece.span.offset;
    for (State * state : piece.what.states) {
        ggml_tensor place = placed(*state, offset);
        offset += state->device_bytes;
        if (inner_.needs_padding(state->tensor) && !inner_.init_tensor(&place)) return false;
        piece.bytes += state->touched.bytes();
    }
    return true;
}

// The next bytes of a piece; once it is whole, whoever reads it can wait for it.
bool Ring::send(Piece & piece, uint64_t bytes) {
    const SubLayer * owner = piece.what.weight ? piece.what.weight->sublayer : piece.what.states.front()->sublayer;
    const TraceLabel before = inner_.label({static_cast<int32_t>(owner->index), 1});
    const bool ok = piece.what.weight ? send_weight(piece, bytes) : send_states(piece, bytes);
    inner_.label(before);
    if (!ok) return false;
    piece.sent_bytes += bytes;
    ahead_.queued(bytes, now_ns());
    if (!piece.whole() || !inner_.has_events()) return true;
    piece.uploaded = inner_.next_event(Events::ring);
    return inner_.record(Stream::upload, piece.uploaded);
}

bool Ring::send_weight(Piece & piece, uint64_t bytes) {
    const uint64_t row = static_cast<uint64_t>(piece.what.first_row);
    const char * data = static_cast<const char *>(piece.what.weight->tensor->data) + row * piece.tensor.nb[1];
    stats_.bytes_streamed += bytes;
    return inner_.set(Stream::upload, &piece.tensor, data + piece.sent_bytes, piece.sent_bytes, bytes);
}

// Bytes `sent_bytes` and further of what is touched of all its caches, one behind the other.
bool Ring::send_states(Piece & piece, uint64_t bytes) {
    uint64_t offset = piece.span.offset, skip = piece.sent_bytes;
    for (State * state : piece.what.states) {
        ggml_tensor place = placed(*state, offset);
        offset += state->device_bytes;
        for (const ByteRange & range : state->touched.part(skip, bytes)) {
            const char * data = static_cast<const char *>(state->tensor->data) + range.begin;
            if (!inner_.set(Stream::upload, &place, data, range.begin, range.size())) return false;
            stats_.bytes_kv_up += range.size();
            stats_.bytes_kv_streamed += range.size();
            bytes -= range.size();
        }
        skip -= std::min<uint64_t>(skip, state->touched.bytes());
    }
    return true;
}

ggml_tensor Ring::placed(const State & state, uint64_t offset) const {
    ggml_tensor tensor = state.shadow;
    tensor.buffer = buffer_.get();
    tensor.data = buffer_.base() + offset;
    return tensor;
}

void Ring::point_at(const Piece & piece) {
    if (piece.what.weight) {
        piece.what.weight->shadow.buffer = piece.tensor.buffer;
        piece.what.weight->shadow.data = piece.tensor.data;
    }
    uint64_t offset = piece.span.offset;
    for (State * state : piece.what.states) {
        state->shadow = placed(*state, offset);
        offset += state->device_bytes;
    }
}

void Ring::let_go_of(const Piece & piece) {
    if (piece.what.weight) let_go(piece.what.weight->shadow, buffer_.get());
    for (State * state : piece.what.states)
        let_go(state->shadow, buffer_.get());
}

bool Ring::acquire(const Streamed * wanted, size_t n_wanted) {
    if (!pump(n_wanted)) return false;
    if (n_wanted > 0) ahead_.needed();
    for (size_t i = 0; i < n_wanted; i++) {
        if (i >= pieces_.size() || !(pieces_[i].what == wanted[i])) return false;
        Piece & piece = pieces_[i];
        point_at(piece);
        if (piece.uploaded && !inner_.wait(Stream::compute, piece.uploaded)) return false;
    }
    return inner_.has_events() || n_wanted == 0 || inner_.synchronize(Stream::upload);
}

bool Ring::retire(size_t n_pieces) {
    if (n_pieces == 0) return pump();
    ggml_backend_event_t read = inner_.has_events() ? inner_.next_event(Events::ring) : nullptr;
    if (read && !inner_.record(Stream::compute, read)) return false;
    const auto is_cache = [](const Piece & piece) { return !piece.what.states.empty(); };
    const auto end = pieces_.begin() + static_cast<std::ptrdiff_t>(n_pieces);
    const bool states = std::any_of(pieces_.begin(), end, is_cache);
    ggml_backend_event_t fetched = read && states ? inner_.next_event(Events::ring) : nullptr;
    if (fetched && !inner_.record(Stream::download, fetched)) return false;
    for (size_t i = 0; i < n_pieces; i++) {
        retired_.push_back({pieces_.front().span, read, states, fetched});
        let_go_of(pieces_.front());
        allocator_of(pieces_.front().what).pop_front();
        pieces_.pop_front();
    }
    while (retired_.size() > kMaxRetired) { // long done; the upload stream is told so
        const Retired oldest = retired_.front();
        retired_.pop_front();
        if (oldest.read && !wait_for(oldest, false)) return false;
    }
    return pump();
}

} // namespace xlm
