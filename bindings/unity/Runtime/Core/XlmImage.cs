using System;
using System.Runtime.InteropServices;
using Xlm.Native;

namespace Xlm
{
    /// <summary>
    /// An image for a model that sees. <see cref="XlmSession.Say"/> copies the bytes before it returns; hashing and
    /// upload happen on the library's thread.
    /// </summary>
    public sealed class XlmImage
    {
        /// <summary>Not copied: leave it as it is until Say has returned.</summary>
        public readonly byte[] Data;
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
            private readonly GCHandle[] handles;
            private readonly xlm_image[] views;
            private GCHandle array;

            internal Pinned(XlmImage[] images)
            {
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

            public void Dispose()
            {
                foreach (GCHandle handle in handles)
                    if (handle.IsAllocated) handle.Free();
                if (array.IsAllocated) array.Free();
            }
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
                bottom_up = BottomUp ? 1u : 0u
            };
        }
    }
}
