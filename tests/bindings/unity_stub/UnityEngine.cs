// The part of UnityEngine that bindings/unity uses, so that its thin layer can be compiled, and driven, without Unity.
// Names and signatures are Unity's; the behaviour is the least that the package relies on: messages by name, the
// order Awake, OnEnable, then OnDisable, OnDestroy, and the one object that is alive until it is destroyed.
using System;
using System.Collections.Generic;
using System.Reflection;

namespace UnityEngine
{
    [AttributeUsage(AttributeTargets.Class)]
    public sealed class AddComponentMenu : Attribute { public AddComponentMenu(string menuName) { } }

    [AttributeUsage(AttributeTargets.Class)]
    public sealed class DefaultExecutionOrder : Attribute { public DefaultExecutionOrder(int order) { } }

    [AttributeUsage(AttributeTargets.Class)]
    public sealed class DisallowMultipleComponent : Attribute { }

    [AttributeUsage(AttributeTargets.Field, AllowMultiple = true)]
    public sealed class HeaderAttribute : Attribute { public HeaderAttribute(string header) { } }

    [AttributeUsage(AttributeTargets.Field)]
    public sealed class TooltipAttribute : Attribute { public TooltipAttribute(string tooltip) { } }

    [AttributeUsage(AttributeTargets.Field)]
    public sealed class TextAreaAttribute : Attribute { public TextAreaAttribute(int minLines, int maxLines) { } }

    [AttributeUsage(AttributeTargets.Field)]
    public sealed class SerializeField : Attribute { }

    public enum RuntimeInitializeLoadType { SubsystemRegistration = 4 }

    [AttributeUsage(AttributeTargets.Method)]
    public sealed class RuntimeInitializeOnLoadMethodAttribute : Attribute
    {
        public RuntimeInitializeOnLoadMethodAttribute(RuntimeInitializeLoadType loadType) { }
    }

    public class Object
    {
        private bool destroyed;

        public static void Destroy(Object obj)
        {
            if (obj.destroyed) return;
            obj.OnDestroyed();
            obj.destroyed = true;
        }

        public static void DontDestroyOnLoad(Object target) { }

        protected virtual void OnDestroyed() { }

        public static bool operator ==(Object a, Object b)
        {
            bool noA = ReferenceEquals(a, null) || a.destroyed, noB = ReferenceEquals(b, null) || b.destroyed;
            return noA || noB ? noA && noB : ReferenceEquals(a, b);
        }

        public static bool operator !=(Object a, Object b) { return !(a == b); }
        public override bool Equals(object other) { return this == (other as Object); }
        public override int GetHashCode() { return 0; }
    }

    public class Component : Object
    {
        public GameObject gameObject { get; internal set; }
        public Transform transform { get { return gameObject.transform; } }

        internal void Send(string message)
        {
            MethodInfo method = GetType().GetMethod(message, BindingFlags.Instance | BindingFlags.NonPublic);
            if (method != null) method.Invoke(this, null);
        }
    }

    public sealed class Transform : Component
    {
        public void SetParent(Transform parent) { }
    }

    public class Behaviour : Component
    {
        private bool on = true;
        private bool awake;

        public bool enabled
        {
            get { return on; }
            set
            {
                if (on == value) return;
                on = value;
                if (awake) Send(on ? "OnEnable" : "OnDisable");
            }
        }

        internal void WakeUp()
        {
            Send("Awake");
            awake = true;
            if (on) Send("OnEnable");
        }

        protected override void OnDestroyed()
        {
            if (on) Send("OnDisable");
            Send("OnDestroy");
        }
    }

    public class MonoBehaviour : Behaviour { }

    public sealed class GameObject : Object
    {
        private readonly List<Behaviour> behaviours = new List<Behaviour>();

        public Transform transform { get; private set; }

        public GameObject(string name)
        {
            transform = new Transform { gameObject = this };
        }

        public T AddComponent<T>() where T : Component, new()
        {
            T made = new T { gameObject = this };
            Behaviour behaviour = made as Behaviour;
            if (!ReferenceEquals(behaviour, null))
            {
                behaviours.Add(behaviour);
                behaviour.WakeUp();
            }
            return made;
        }

        /// <summary>Not Unity's: one frame of this object.</summary>
        public void Frame()
        {
            foreach (Behaviour one in behaviours.ToArray())
                if (one != null && one.enabled) one.Send("Update");
        }

        protected override void OnDestroyed()
        {
            foreach (Behaviour one in behaviours.ToArray()) Destroy(one);
        }
    }

    public static class Time { public static float unscaledDeltaTime = 1f / 60f; }

    public static class Application { public static int targetFrameRate = -1; }

    public static class Mathf { public static bool Approximately(float a, float b) { return Math.Abs(a - b) < 1e-6f; } }

    public static class Debug
    {
        public static readonly List<string> Lines = new List<string>();
        public static void Log(object message) { Lines.Add("log " + message); }
        public static void LogWarning(object message) { Lines.Add("warning " + message); }
        public static void LogError(object message, Object context) { Lines.Add("error " + message); }
        public static void LogWarning(object message, Object context) { Lines.Add("warning " + message); }
    }

    public struct Color32
    {
        public byte r, g, b, a;
        public Color32(byte r, byte g, byte b, byte a) { this.r = r; this.g = g; this.b = b; this.a = a; }
    }

    public enum TextureFormat { RGB24 = 3, RGBA32 = 4, BGRA32 = 14, RGBAHalf = 17 }

    public class Texture2D : Object
    {
        public byte[] Raw;
        public Color32[] Pixels;
        public TextureFormat format;
        public int width, height;
        public byte[] GetRawTextureData() { return (byte[])Raw.Clone(); }
        public Color32[] GetPixels32() { return (Color32[])Pixels.Clone(); }
    }

    public sealed class GUILayoutOption { }

    public static class GUILayout
    {
        public static void Label(string text, params GUILayoutOption[] options) { }
        public static string TextField(string text, params GUILayoutOption[] options) { return text; }
        public static bool Button(string text, params GUILayoutOption[] options) { return false; }
        public static float HorizontalSlider(float value, float left, float right, params GUILayoutOption[] options)
        {
            return value;
        }
    }
}

namespace UnityEngine.Events
{
    public delegate void UnityAction<T0>(T0 arg0);

    public abstract class UnityEvent<T0>
    {
        private event UnityAction<T0> Listeners;
        public void AddListener(UnityAction<T0> call) { Listeners += call; }
        public void RemoveListener(UnityAction<T0> call) { Listeners -= call; }
        public void Invoke(T0 arg0) { if (Listeners != null) Listeners(arg0); }
    }
}
