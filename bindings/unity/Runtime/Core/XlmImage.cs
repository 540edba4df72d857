using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Threading;
using Xlm.Native;

namespace Xlm
{
    /// <summary>
    /// An image for a model that sees. <see cref="XlmSession.Say"/> copies the bytes before it returns, or borrows them
    /// where <see cref="Lend"/> is set; hashing and upload happen on the library's thread.
    /// </summary>
    public sealed class XlmImage
    {
        /// <summary>Leave it as it is until Say has returned; a lent one, until IsLent is false again.</summary>
        public readonly byte[] Data;

        /// <summary>
        /// Lend the bytes instead of having them copied, which takes milliseconds for a large frame. They are pinned
        /// until the broker has them, or until they will not be sent any more.
        /// </summary>
        public bool Lend;

        private int lent; // how many answers read it now

        /// <summary>The library reads Data: do not change it.</summary>
        public bool IsLent
        {
            get { return Volatile.Read(ref lent) > 0; }
        }

        /// <summary>A lent image is yours again; within Poll.</summary>
        public event Action<XlmImage> Released;
        public readonly XlmImageFormat Format;
        public readonly int Width;
        public readonly int Height;

        /// <summary>Bytes from row to row; 0: rows without padding.</summary>
        public readonly int StrideBytes;

        /// <summary>The first row in memory is the lowest one, as in Unity's textures.</summary>
        public readonly bool BottomUp;

        /// <summary>The bytes of a PNG, JPEG, WebP, BMP or GIF file.</summary>
        public XlmImage(byte[] file) : this(file, XlmImageFormat.Encoded, 0, 0) { }

        /// <summary>Raw pixels.</summary>
        public XlmImage(
            byte[] data, XlmImageFormat format, int width, int height, int strideBytes = 0, bool bottomUp = false)
        {
            if (data == null) throw new ArgumentNullException("data");
            if (width < 0 || height < 0 || strideBytes < 0) throw new ArgumentOutOfRangeException("width");
            Data = data;
            Format = format;
            Width = width;
            Height = height;
            StrideBytes = strideBytes;
            BottomUp = bottomUp;
        }

        /// <summary>The native array of images for the length of one call.</summary>
        internal sealed unsafe class Pinned : IDisposable
        {
            private readonly XlmImage[] images;
            private readonly GCHandle[] handles;
            private readonly xlm_image[] views;
            private GCHandle array;

            internal Pinned(XlmImage[] images)
            {
                this.images = images;
                int count = images == null ? 0 : images.Length;
                handles = new GCHandle[count];
                views = new xlm_image[count];
                for (int i = 0; i < count; i++)
                {
                    handles[i] = GCHandle.Alloc(images[i].Data, GCHandleType.Pinned);
                    views[i] = images[i].View((void*)handles[i].AddrOfPinnedObject());
                }
                array = GCHandle.Alloc(views, GCHandleType.Pinned);
            }

            internal uint Count
            {
                get { return (uint)views.Length; }
            }

            internal xlm_image* First
            {
                get { return views.Length == 0 ? null : (xlm_image*)array.AddrOfPinnedObject(); }
            }

            /// <summary>Those that stay pinned after a call that succeeded; null: none.</summary>
            internal LentImages TakeLent()
            {
                LentImages taken = null;
                for (int i = 0; i < handles.Length; i++)
                {
                    if (!images[i].Lend) continue;
                    taken = taken ?? new LentImages();
                    taken.Add(images[i], handles[i]);
                    handles[i] = default(GCHandle);
                }
                return taken;
            }

            public void Dispose()
            {
                foreach (GCHandle handle in handles)
                    if (handle.IsAllocated) handle.Free();
                if (array.IsAllocated) array.Free();
            }
        }

        internal void CountLent(int change)
        {
            Interlocked.Add(ref lent, change);
        }

        internal void TellReleased()
        {
            Action<XlmImage> handler = Released;
            if (handler != null && !IsLent) handler(this);
        }

        private unsafe xlm_image View(void* data)
        {
            return new xlm_image
            {
                struct_size = (uint)sizeof(xlm_image),
                format = Format,
                data = data,
                size_bytes = (UIntPtr)(uint)Data.Length,
                width = (uint)Width,
                height = (uint)Height,
                stride_bytes = (UIntPtr)(uint)StrideBytes,
                bottom_up = BottomUp ? 1u : 0u,
                lent = Lend ? 1u : 0u // given back by an event: no function pointer goes to the library
            };
        }
    }

    /// <summary>The images lent to one answer.</summary>
    internal sealed class LentImages
    {
        private readonly List<XlmImage> images = new List<XlmImage>();
        private readonly List<GCHandle> handles = new List<GCHandle>();

        internal void Add(XlmImage image, GCHandle handle)
        {
            image.CountLent(1);
            images.Add(image);
            handles.Add(handle);
        }

        internal void Unpin()
        {
            foreach (GCHandle handle in handles) handle.Free();
            foreach (XlmImage image in images) image.CountLent(-1);
            handles.Clear();
        }

        internal void Tell()
        {
            foreach (XlmImage image in images) image.TellReleased();
        }
    }
}
